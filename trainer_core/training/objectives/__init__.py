"""What is trained or measured beside the plain loss: preservation, sliders, validation."""
