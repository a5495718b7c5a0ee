"""`assay demo`: a small chess model learns on this machine, beside a control."""
