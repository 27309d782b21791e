"""What a worker of a small model says when it is ready."""

from decoding.worker.messages import Ready

READY = Ready(
    model="fake",
    max_model_len=100,
    vocab_size=257,
    eos_token_ids=[256],
    methods=["none", "spine"],
    max_nodes=60,
    dtype="float32",
    device="cpu",
    attention="exact",
    is_exact=True,
    load_seconds=0.1,
    parameters=1,
    fingerprint="fp_fake",
)
