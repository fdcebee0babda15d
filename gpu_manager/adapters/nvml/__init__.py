"""The real cards through NVML; only this package imports the binding."""
