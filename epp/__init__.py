"""An endpoint picker for LLM inference, speaking Envoy's ext_proc protocol."""

__version__ = "0.1.0"
