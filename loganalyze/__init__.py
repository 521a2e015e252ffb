"""Why an SGLang server was slow, from its log alone."""

__version__ = "0.1.0"
