"""APIs whose bodies are protobuf in gRPC frames: vLLM's engine and Vertex AI's predictions.

Only the fields that routing needs are declared (`messages`); protobuf skips the others.
"""
