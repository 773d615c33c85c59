"""A federation over Flower: apps that pass bytes on, the server's mail, and the processes of a deployment."""
