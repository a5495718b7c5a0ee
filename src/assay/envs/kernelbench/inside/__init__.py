"""What runs inside sandbox children: modules here import PyTorch or Triton and are never imported by the parent."""
