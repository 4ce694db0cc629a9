"""A model as PyTorch's compiler sees it: Dynamo's graphs, their arguments, stand-ins for a device."""
