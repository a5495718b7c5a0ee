"""`GRPOTrainer` over a Hugging Face model of the caller's own."""
