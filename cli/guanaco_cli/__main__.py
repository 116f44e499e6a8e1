from guanaco_cli.main import main

main()
