"""Chess as two verifiable text tasks: P: (choose a move, judged by Stockfish) and A: (make a move, by python-chess)."""
