# Network, cluster, database and bucket for the overlay k8s/overlays/nvidia. Modules are pinned to one version each: they are
# the last that take version 5 of the AWS provider, and change together.

module "vpc" {
  source  = "terraform-aws-modules/vpc/aws"
  version = "5.21.0"

  name = var.name
  cidr = "10.40.0.0/16"
  azs  = var.zones

  private_subnets  = [for i, _ in var.zones : cidrsubnet("10.40.0.0/16", 4, i)]
  public_subnets   = [for i, _ in var.zones : cidrsubnet("10.40.240.0/20", 4, i)]
  database_subnets = [for i, _ in var.zones : cidrsubnet("10.40.224.0/20", 4, i)]

  enable_nat_gateway = true
  single_nat_gateway = true

  public_subnet_tags  = { "kubernetes.io/role/elb" = 1 }
  private_subnet_tags = { "kubernetes.io/role/internal-elb" = 1 }
}

# Weights go from the bucket to the nodes without the NAT gateway, which bills each byte.
module "endpoints" {
  source  = "terraform-aws-modules/vpc/aws//modules/vpc-endpoints"
  version = "5.21.0"

  vpc_id = module.vpc.vpc_id

  endpoints = {
    s3 = {
      service         = "s3"
      service_type    = "Gateway"
      route_table_ids = module.vpc.private_route_table_ids
    }
  }
}

module "eks" {
  source  = "terraform-aws-modules/eks/aws"
  version = "20.37.2"

  cluster_name    = var.name
  cluster_version = "1.33"

  vpc_id     = module.vpc.vpc_id
  subnet_ids = module.vpc.private_subnets

  cluster_endpoint_public_access           = true
  cluster_endpoint_public_access_cidrs     = var.operators
  enable_cluster_creator_admin_permissions = true

  cluster_addons = {
    coredns        = {}
    kube-proxy     = {}
    metrics-server = {}
    vpc-cni = {
      before_compute       = true
      configuration_values = jsonencode({ enableNetworkPolicy = "true" }) # k8s/base/network.yaml counts on it
    }
  }

  eks_managed_node_groups = merge(
    {
      platform = {
        instance_types = [var.platform_nodes.type]
        min_size       = var.platform_nodes.min
        max_size       = var.platform_nodes.max
        desired_size   = var.platform_nodes.min
        labels         = { "guanaco/nodes" = "platform" }
      }
    },
    {
      for key, nodes in var.gpu_nodes : key => {
        ami_type       = "AL2023_x86_64_NVIDIA"
        instance_types = [nodes.type]
        min_size       = 0
        max_size       = nodes.max
        desired_size   = 0 # a cluster autoscaler, or you, raises it
        labels         = { "guanaco/nodes" = "models", "guanaco/gpu" = nodes.gpu }
        taints         = { gpu = { key = "nvidia.com/gpu", value = "present", effect = "NO_SCHEDULE" } }

        # Room for an artifact of each pod: GUANACO_ENGINE_CACHE_BYTES for each GPU, and the images.
        block_device_mappings = {
          root = {
            device_name = "/dev/xvda"
            ebs         = { volume_size = 100 + 75 * nodes.gpus, volume_type = "gp3", delete_on_termination = true }
          }
        }
      }
    },
  )
}

module "database" {
  source  = "terraform-aws-modules/rds/aws"
  version = "6.12.0"

  identifier           = var.name
  engine               = "postgres"
  engine_version       = "16"
  family               = "postgres16"
  major_engine_version = "16"
  instance_class       = "db.m7g.large"

  allocated_storage     = 100
  max_allocated_storage = 1000
  storage_encrypted     = true

  db_name                     = "guanaco"
  username                    = "guanaco"
  port                        = 5432
  manage_master_user_password = false
  password                    = random_password.database.result

  multi_az                = true
  backup_retention_period = 14
  deletion_protection     = true
  skip_final_snapshot     = false

  create_db_subnet_group = false
  db_subnet_group_name   = module.vpc.database_subnet_group_name
  vpc_security_group_ids = [aws_security_group.database.id]
}

resource "random_password" "database" {
  length  = 32
  special = false # it stands in a URL
}

resource "aws_security_group" "database" {
  name_prefix = "${var.name}-database-"
  description = "PostgreSQL from the cluster's nodes"
  vpc_id      = module.vpc.vpc_id

  ingress {
    description     = "PostgreSQL"
    from_port       = 5432
    to_port         = 5432
    protocol        = "tcp"
    security_groups = [module.eks.node_security_group_id]
  }

  lifecycle {
    create_before_destroy = true
  }
}

module "artifacts" {
  source  = "terraform-aws-modules/s3-bucket/aws"
  version = "4.11.0"

  bucket = var.bucket

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true

  attach_deny_insecure_transport_policy = true

  server_side_encryption_configuration = {
    rule = { apply_server_side_encryption_by_default = { sse_algorithm = "AES256" } }
  }

  # What a killed upload leaves, when even the platform's collector has not run for a week.
  lifecycle_rule = [
    {
      id                                     = "abandoned-uploads"
      enabled                                = true
      abort_incomplete_multipart_upload_days = 7
    }
  ]
}

# The least rights that the platform needs: docs/operating.md, "The bucket".
data "aws_iam_policy_document" "artifacts" {
  statement {
    actions   = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
    resources = [module.artifacts.s3_bucket_arn]
  }

  statement {
    actions = [
      "s3:GetObject",
      "s3:PutObject",
      "s3:DeleteObject",
      "s3:AbortMultipartUpload",
      "s3:ListMultipartUploadParts",
    ]
    resources = ["${module.artifacts.s3_bucket_arn}/${var.prefix}/*"]
  }
}

resource "aws_iam_user" "artifacts" {
  name = "${var.name}-artifacts"
}

resource "aws_iam_user_policy" "artifacts" {
  name   = "artifacts"
  user   = aws_iam_user.artifacts.name
  policy = data.aws_iam_policy_document.artifacts.json
}

resource "aws_iam_access_key" "artifacts" {
  user = aws_iam_user.artifacts.name
}
