"""What every program of the project runs on: command lines, logs, threads, listening sockets, scrapes."""
