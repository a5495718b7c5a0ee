"""How a Hugging Face architecture is run: which ones the fused decoder understands, and what is checked at loading."""
