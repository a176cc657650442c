"""An inference engine for DeepSeek-V4.1-Flash that one person can read."""

__version__ = "0.1.0"
