"""Studies whose clients' rows are on different machines: the server's half, the nodes', and their folders."""
