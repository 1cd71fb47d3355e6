"""What Envoy tells us after the answer, when the answer is not streamed through us."""
