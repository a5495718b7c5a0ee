"""What runs inside a worker: the jail, the child of each job, the channel to the host."""
