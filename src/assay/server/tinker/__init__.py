"""A server that speaks the Tinker protocol over a model of this machine: `assay serve`."""
