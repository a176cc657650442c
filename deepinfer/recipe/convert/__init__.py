"""From request bodies of three protocols to conversations."""
