"""Images and masks: data sets, their index, augmentation, background shift, and the simulated world of clients."""
