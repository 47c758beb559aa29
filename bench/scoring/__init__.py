"""Scoring embeddings made anywhere: arrays or files in, the tidy table of ``bench run`` out."""
