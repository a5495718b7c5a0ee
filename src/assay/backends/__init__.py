"""Where a policy lives: the protocol (`base`), PyTorch on this machine (`local`), and how one is opened (`named`)."""

import os

# Some processors' matrix products otherwise round by where their operands lie in memory, so that a resumed run would
# not be the same run bit for bit. MKL reads this with its first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
