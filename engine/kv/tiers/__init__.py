"""Where blocks are besides the device: host memory, and through connectors a disk or another process."""
