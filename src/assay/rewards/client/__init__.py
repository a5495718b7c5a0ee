"""Asking a judge: HTTP, limits, retries, hedging, the reply cache."""
