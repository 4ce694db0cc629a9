"""What an op costs: seconds, flops, bytes of its workspaces; and the meter that measures peaks."""
