"""How good it is: the protocol, rivals, intervals and the report."""
