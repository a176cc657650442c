"""Question sets: each module makes questions and scores replies to them."""
