"""What haulway.vllm uses of vLLM 0.33.0, with its signatures."""
