"""Many LoRA adapters on one model in memory: each is trained by itself, and all are sampled side by side."""
