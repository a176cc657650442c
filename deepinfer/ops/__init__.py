"""Operations: one folder each, with a plain-torch reference and what stands beside it."""
