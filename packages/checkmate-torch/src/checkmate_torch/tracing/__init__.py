"""A step as a graph: AOTAutograd's joint graph, and the DFGraph that is solved."""
