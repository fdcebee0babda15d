"""Sensors of a simulated card: what a card of its power would show under the load that it was given."""

from __future__ import annotations

from gpu_manager.ports.cards import NO_SENSORS, CardSensors

SENSOR_SECONDS = 10.0  # between two readings, as of a real card
_COOL, _WARMER = 30.0, 45.0  # °C of an idle card, and what full load adds


class SimulatedSensors:
    """Temperature, power and energy of one card. The energy is that of the load between the readings."""

    def __init__(self, watts: tuple[float, float], now: float) -> None:
        """``watts``: the power of an idle card and at full load; ``now``: monotonic seconds."""
        self._idle, self._full = watts
        self._at = self._read_at = now
        self._joules = 0.0
        self._power = self._idle
        self._shown = NO_SENSORS

    def read(self, now: float, percent: float) -> CardSensors:
        """Return the figures, at most :data:`SENSOR_SECONDS` old; the load is ``percent`` from now on."""
        self._joules += self._power * max(0.0, now - self._at)
        self._at = now
        self._power = self._idle + (self._full - self._idle) * percent / 100
        if self._shown is NO_SENSORS or now - self._read_at >= SENSOR_SECONDS:
            self._read_at = now
            warmth = _COOL + _WARMER * percent / 100
            self._shown = CardSensors(temperature=warmth, power=self._power, energy=self._joules)
        return self._shown
