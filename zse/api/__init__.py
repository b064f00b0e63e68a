"""Import paths that programs know from elsewhere; each is a few lines over what stands in zse.

    zse.api.server            run_server
    zse.api.server.audit      AuditLogger, AuditMiddleware
    zse.api.server.auth       SlidingWindowRateLimiter
    zse.api.server.batching   BatchingState, batched_chat_completion, batched_text_completion

``zse.gguf`` has GGUFWrapper and is_gguf_file; ``zse.engine.batching`` has BatchConfig,
BatchRequest and BatchingEngine; ``zse.engine.generation`` other names of what generates;
``zse.engine.scheduler`` the ContinuousBatchingScheduler.
"""
