"""The trusted side of the sandbox on this machine: starting workers, walls, results."""
