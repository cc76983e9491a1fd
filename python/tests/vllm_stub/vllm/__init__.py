"""The parts of vLLM 0.33.0 that haulway.vllm uses, with their signatures."""
