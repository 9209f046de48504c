"""From a folder of images to batches: scan, plan buckets, encode once, deal out batches."""
