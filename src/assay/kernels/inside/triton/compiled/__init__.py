"""What Triton's compiler has made of a kernel."""
