"""A page in the browser: runs and federations, live, and images segmented by their models"""
