"""Stockfish: one process (`uci_engine`), a pool (`stockfish`), a file of analyses (`analysis_cache`)."""
