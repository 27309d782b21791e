"""What a worker of a small model says when it is ready."""

from decoding.worker.messages import Ready

READY = Ready(
    model="fake",
    max_model_len=100,
    model_context_len=100,
    context_note=None,
    max_running=8,
    max_batch_rows=64,
    kv_slots=1000,
    expected_bytes=3000,
    vocab_size=257,
    eos_token_ids=[256],
    methods=["none", "spine"],
    max_nodes=60,
    dtype="float32",
    weights="float32",
    device="cpu",
    attention="exact",
    is_exact=True,
    load_seconds=0.1,
    parameters=1,
    fingerprint="fp_fake",
    identity="id_fake",
)
