"""The frozen weight below an adapter: quantized, sharded or plain."""
