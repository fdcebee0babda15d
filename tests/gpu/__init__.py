"""The promises of DESIGN on a real card: ``python -m tests.gpu``. No test of these runs without a card."""
