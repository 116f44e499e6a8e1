output "kubeconfig" {
  description = "The command that lets kubectl reach the cluster."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${module.eks.cluster_name}"
}

output "database_url" {
  description = "For the Secret guanaco-database."
  value       = "postgresql://guanaco:${random_password.database.result}@${module.database.db_instance_endpoint}/guanaco?sslmode=require"
  sensitive   = true
}

output "artifacts_key_id" {
  description = "For the Secret guanaco-artifacts."
  value       = aws_iam_access_key.artifacts.id
  sensitive   = true
}

output "artifacts_key" {
  description = "For the Secret guanaco-artifacts."
  value       = aws_iam_access_key.artifacts.secret
  sensitive   = true
}

output "settings" {
  description = "What goes into guanaco-settings, where it differs from the overlay's."
  value = {
    GUANACO_ARTIFACTS_URL = "s3://${module.artifacts.s3_bucket_id}/${var.prefix}"
    GUANACO_S3_REGION     = var.region
  }
}
