"""The five services of MalleTrain share this package: configuration, servers, channels, logging, clocks."""
