"""HTTP to one endpoint: routes and proxies, bounded replies, keys, and what keeps keys out of texts."""
