"""What imports PyTorch or Triton, and so runs only in processes of its own: harnesses and the reference worker."""
