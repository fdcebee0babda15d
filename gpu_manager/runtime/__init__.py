"""The base of every program of the project: command lines, logs, threads, listening sockets, scrapes."""
