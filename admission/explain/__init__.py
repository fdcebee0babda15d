"""Why a pod waits, the smallest change that helps, and what people are shown of it."""
