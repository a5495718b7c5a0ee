"""A trained policy as a folder that transformers or peft loads, and such a folder on the Hugging Face hub."""
