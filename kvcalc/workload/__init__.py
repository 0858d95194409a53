"""Traffic: traces and distributions of requests, the caches that they meet, and who waits."""
